"""What verbs share: their words, their output, and how nothing is lost."""
