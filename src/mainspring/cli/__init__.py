"""The command line: parse, call, print. The rooms hold the commands by what they are about."""
