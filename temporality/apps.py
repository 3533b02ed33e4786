from django.apps import AppConfig


class TemporalityConfig(AppConfig):
    name = "temporality"
