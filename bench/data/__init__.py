"""What are the text workloads trained on? Text, then errors, then tensors on disk or in memory."""
