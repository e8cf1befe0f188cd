"""Tables, figures and HTML pages, made from evaluation results."""
