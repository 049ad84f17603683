"""Watch the ledger as the leader: objectives, holes, and the heartbeat that reports good health. Imports cluster/."""
