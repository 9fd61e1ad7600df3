"""Why is this script slow? It is run as it is, and watched and changed only between its steps."""
