"""Why is somebody's own script slow?"""
