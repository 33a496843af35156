"""Print styled lines, tables and live screens; whatever others wrote is made harmless here."""
