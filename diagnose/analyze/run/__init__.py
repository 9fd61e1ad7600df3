"""Where does the time of a step go, and which part is to blame?"""
