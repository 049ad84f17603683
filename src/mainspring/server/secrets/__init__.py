"""Secrets as a server opens them: decrypted for a dispatch or a message, and kept no longer."""
