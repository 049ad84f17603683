"""`mainspring task …`"""
