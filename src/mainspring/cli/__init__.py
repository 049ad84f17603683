"""The command line: parse, call an operation, print. Its rooms hold the commands by subject.

Imports operations/, compose/ and sdk/; nothing imports it. `mainspring --help` takes less than 150 ms, so what is
heavy is imported inside the commands.
"""
