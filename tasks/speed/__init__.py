"""How fast training steps are and what memory they take: measured in processes of their own."""
