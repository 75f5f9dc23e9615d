"""The recipe of the model inside: tasks, tokenizer, network, training loop."""
