"""What commands do: functions of parsed arguments, named by `tacit.cli.parsers` and imported when they are called."""
