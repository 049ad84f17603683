"""Agents, servers, segments, daemons: `mainspring agents | servers | segments | daemon`"""
