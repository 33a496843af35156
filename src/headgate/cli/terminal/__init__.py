"""Print styled lines, tables and live screens; control characters in text of others are made harmless here."""
