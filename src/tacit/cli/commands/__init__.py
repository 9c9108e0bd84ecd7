"""The commands: functions of parsed arguments, named by `tacit.cli.parsers` and imported when called."""
