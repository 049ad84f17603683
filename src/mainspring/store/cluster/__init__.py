"""The cluster's rows: servers, agents, segments, the leader and settings. Imports postgres/ only."""
