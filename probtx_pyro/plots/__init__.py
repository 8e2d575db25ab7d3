"""Pictures: functions of labelled arrays that return matplotlib axes."""
