"""Days since 1970-01-01 and the calendar's dates, without a clock (proleptic Gregorian; H. Hinnant, `chrono-dates`)."""


def day_of(iso: str) -> int:
    """Days since 1970-01-01 of a YYYY-MM-DD date (`days_from_civil`)."""
    year, month, day = map(int, iso.split("-"))
    year -= month <= 2  # the year begins in March, so that the leap day is its last
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def iso_of(day: int) -> str:
    """The YYYY-MM-DD date of so many days since 1970-01-01 (`civil_from_days`)."""
    era, of_era = divmod(day + 719_468, 146_097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    return f"{year:04d}-{month:02d}-{of_year - (153 * shifted + 2) // 5 + 1:02d}"
