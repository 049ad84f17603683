"""The connection to a server: connect, hello, heartbeat, lease, reports kept until acknowledged. Uses attempt.py."""
