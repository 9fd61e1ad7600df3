"""What does a full spelling corrector cost beyond its encoder? DGCA: ReLM with three more heads."""
