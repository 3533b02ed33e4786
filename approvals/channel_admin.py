"""Where a project's news is told, and what became of each message."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from approvals import announcements
from approvals.models import Channel, Delivery
from kernel_project.admin import FactAdmin, audit, badge, cell, few_enough, moment, report, wide_cell
from kernel_project.primitives.errors import KernelError
from kernel_project.visible_text import shown


class ChannelForm(forms.ModelForm):  # type: ignore[type-arg]
    """A channel as a person names it; author and time are the service's."""

    events = forms.MultipleChoiceField(
        choices=Channel.Event.choices, initial=announcements.REQUESTS_ALONE, widget=forms.CheckboxSelectMultiple,
        help_text="What is told there. E-mail tells of approvals only.",
    )  # fmt: skip

    class Meta:
        model = Channel
        fields = ["project", "kind", "target", "events", "group", "secret_env"]

    def clean(self) -> dict[str, Any]:
        super().clean()
        values: dict[str, Any] = self.cleaned_data
        if not self.errors:
            try:
                announcements.check(values["kind"], values["target"], values["secret_env"], values["events"])
            except KernelError as error:
                raise forms.ValidationError(shown(error.message)) from None
        return values


@admin.register(Channel)
class ChannelAdmin(FactAdmin):
    """Channels: made, and taken out of use. A secret is named here and never shown, for only the environment has it."""

    form = ChannelForm
    list_display = ["where", "project", "tells", "only", "secret_env", "made", "retired"]
    exact_texts = ["project"]
    search_help_text = "A whole project"
    ordering = ["project", "-id"]
    actions = ["retire"]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("approvals.add_channel")

    def has_retire_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("approvals.change_channel")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [*ChannelForm.Meta.fields, *(["created_by", "created_at", "retired_at"] if obj else [])]

    def save_model(self, request: HttpRequest, obj: Channel, form: Any, change: bool) -> None:
        if change:
            raise PermissionDenied
        values = form.cleaned_data
        made = announcements.add_channel(
            values["project"], values["kind"], request.user.get_username(), target=values["target"],
            group=values["group"], secret_env=values["secret_env"], events=values["events"],
        )  # fmt: skip
        obj.pk, obj.created_by = made.pk, made.created_by
        audit(request, made, f"tells {', '.join(made.events)} of {made.project} by {made}")

    @admin.action(description="Retire", permissions=["retire"])
    def retire(self, request: HttpRequest, queryset: QuerySet[Channel]) -> None:
        for channel in few_enough(request, queryset):
            report(request, channel, partial(_retire, channel))

    @admin.display(description="Channel")
    def where(self, channel: Channel) -> SafeString:
        target = channel.target or "members of the request's group"
        return format_html("{} {}", badge(channel.kind), cell(target))

    @admin.display(description="Tells")
    def tells(self, channel: Channel) -> SafeString:
        return cell(", ".join(channel.events))

    @admin.display(description="Requests")
    def only(self, channel: Channel) -> SafeString:
        return cell(f"of {channel.group}" if channel.group else "all")

    @admin.display(description="Made")
    def made(self, channel: Channel) -> SafeString:
        return format_html("{} by {}", moment(channel.created_at), cell(channel.created_by))

    @admin.display(description="Retired")
    def retired(self, channel: Channel) -> SafeString:
        return moment(channel.retired_at)


def _retire(channel: Channel) -> str:
    return f"{channel} retired" if announcements.retire_channel(channel.pk) else f"{channel} was retired before"


class OpenFilter(admin.SimpleListFilter):
    """Messages that are still to be sent: they have an index of their own."""

    title = "message"
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [("1", "still to be sent")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> QuerySet[Delivery]:
        return queryset.filter(next_attempt_at__isnull=False) if self.value() == "1" else queryset


@admin.register(Delivery)
class DeliveryAdmin(FactAdmin):
    """Messages: when, to whom, how often tried, and what came of it."""

    list_display = ["about", "to", "fate", "attempts", "due", "problem"]
    list_filter = [OpenFilter]
    list_select_related = ["channel"]
    exact_ids = ["approval_id", "run_id", "id"]
    search_help_text = "A whole request, run or message id"
    fields = ["about", "to", "fate", "attempts", "due", "problem", "text"]
    ordering = ["-id"]

    @admin.display(description="Message")
    def about(self, delivery: Delivery) -> SafeString:
        if delivery.approval_id is not None:
            where, what = reverse("admin:approvals_approval_change", args=[delivery.approval_id]), "request"
        else:
            where, what = reverse("admin:runs_run_change", args=[delivery.run_id]), "run"
        return format_html('{} <a class="k-link" href="{}">{}</a>', badge(delivery.occasion), where, what)

    @admin.display(description="To")
    def to(self, delivery: Delivery) -> SafeString:
        return format_html("{} {}", badge(delivery.channel.kind), cell(delivery.target))

    @admin.display(description="Fate")
    def fate(self, delivery: Delivery) -> SafeString:
        if delivery.sent_at is not None:
            return format_html("{} {}", badge("completed", "sent"), moment(delivery.sent_at))
        return badge("withdrawn", delivery.dropped) if delivery.dropped else badge("waiting", "to be sent")

    @admin.display(description="Due")
    def due(self, delivery: Delivery) -> SafeString:
        return moment(delivery.next_attempt_at)

    @admin.display(description="What is told")
    def text(self, delivery: Delivery) -> SafeString:
        return format_html('<pre class="k-text">{}</pre>', shown(delivery.body))

    @admin.display(description="Last problem")
    def problem(self, delivery: Delivery) -> SafeString:
        return wide_cell(delivery.last_error)
