"""The command line. One small module per verb, imported when the verb is used; heavy imports live inside functions."""
