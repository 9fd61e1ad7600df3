"""What is written down? The waist: plain data types and arithmetic, standard library only."""
