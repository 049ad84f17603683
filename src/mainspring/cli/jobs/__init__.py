"""`mainspring job …`"""
