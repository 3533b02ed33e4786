"""The roof: wires the apps together and decides nothing."""
