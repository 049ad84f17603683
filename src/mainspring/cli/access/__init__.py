"""Tokens, logins, sessions, the audit, roles of PostgreSQL: `mainspring token | login | sessions | audit | grant`"""
