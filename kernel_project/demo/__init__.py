"""The main job on real input: `manage.py demo`. Everything it uses is what an application would use."""
