"""Which source line causes which device work?"""
