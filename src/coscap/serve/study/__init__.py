"""The paper's human evaluation: people rate the accuracy and diversity of captions without knowing who wrote them."""
