"""The agents connected to this server: endpoint, handshake, sessions. Imports recording/ and cluster/."""
