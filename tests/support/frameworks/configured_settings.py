steps, rate = 80, 0.1
