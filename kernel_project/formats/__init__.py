"""How Django itself writes times: like everything here, year first and to the second."""
