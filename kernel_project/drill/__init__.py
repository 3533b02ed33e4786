"""`manage.py drill`: break what each row of the failure table names, for real, and tell what was observed."""
