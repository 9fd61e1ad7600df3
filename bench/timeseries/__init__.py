"""Why does a small recurrent model starve its device? LSTM with attention on a daily series."""
