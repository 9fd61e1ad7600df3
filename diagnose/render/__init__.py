"""How is it shown? Findings in, Markdown, figures and files out."""
