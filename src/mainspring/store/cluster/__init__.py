"""The cluster's rows: servers, agents, segments, the leader, tokens and settings. Imports postgres/ only."""
