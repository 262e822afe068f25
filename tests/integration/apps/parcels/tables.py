"""The same tables for SQLAlchemy: as tables, and as mapped classes."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Integer, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """What knows all tables."""


class Parcel(Base):
    """Something that is sent once."""

    __tablename__ = "parcel"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    state: Mapped[str | None] = mapped_column("status", String(20), default="pending")
    carrier: Mapped[str] = mapped_column(String(20), default="")
    fence: Mapped[int | None] = mapped_column(BigInteger, default=0)


class Receipt(Base):
    """Written once for each parcel; its number is unique, too."""

    __tablename__ = "receipt"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    parcel: Mapped[int] = mapped_column("parcel_id", ForeignKey("parcel.id"), unique=True)
    number: Mapped[int] = mapped_column(unique=True)
    note: Mapped[str] = mapped_column(String(20), default="")


class Stop(Base):
    """One of a parcel's way: a key of two columns."""

    __tablename__ = "stop"

    parcel: Mapped[int] = mapped_column(primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="pending")
