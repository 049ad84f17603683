"""What alert rules look for: a function for each kind (model/alerts/findings.py has the contract)."""
