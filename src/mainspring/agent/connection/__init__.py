"""The link to a server: connect, hello, heartbeat, lease, and reports kept until they are acknowledged."""
