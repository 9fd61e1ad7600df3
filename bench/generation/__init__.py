"""What do jobs that write share? Questions in, answers out, and what a step of that costs."""
