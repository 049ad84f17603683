"""Agents, servers, segments, daemons, tokens: `mainspring agents | servers | segments | daemon | token`"""
