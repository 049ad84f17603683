"""`mainspring schedule …`"""
