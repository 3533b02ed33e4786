from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs"

    def ready(self) -> None:
        from approvals import people
        from runs import keys
        from runs.boundary import decisions, edits  # noqa: F401  listens to approvals, answers their questions
        from runs.keeping import holds  # noqa: F401  answers the outbox what is held
        from runs.loop import wakes  # noqa: F401  listens to news

        people.STANDING_BEHIND.append(keys.people_behind)
