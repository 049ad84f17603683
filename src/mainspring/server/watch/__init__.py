"""Watch the ledger as the leader: objectives, holes, and who is told that all is well. Imports cluster/."""
