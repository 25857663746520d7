"""Knowledge distillation of BERT: TinyBERT and its family."""
