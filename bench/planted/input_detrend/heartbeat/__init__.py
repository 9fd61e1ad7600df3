"""What the training of the heart rate model is made of."""
