"""What the apps' admin pages have in common: facts are looked at, lists stay bounded, every try is written down.

Imports no app, so that every floor of the house may stand on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.views.main import ORDER_VAR
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from kernel_project.primitives.errors import KernelError
from kernel_project.templatetags.kernel import since, stamp, tone
from kernel_project.visible_text import shown

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

    Base = ModelAdmin[Any]
    PaginatorBase = Paginator[Any]
    from django.contrib.admin.views.main import ChangeList as UnfoldChangeList
else:
    from unfold.admin import ModelAdmin as Base
    from unfold.views import ChangeList as UnfoldChangeList

    PaginatorBase = Paginator

ROWS_LISTED_MAX = 10_000  # a list ends there, so that neither its count nor its last page looks at the whole table
ROWS_PER_PAGE = 25  # a row costs a few milliseconds of templates; fifty made a page of 360 KiB
ACTION_OBJECTS_MAX = 100  # objects that one action on a list may touch
WINDOW_ROWS = 50_000  # the latest rows, which filters without an index of their own look through
CELL_CHARS_MAX = 120
SENTENCE_CHARS_MAX = 300


class BoundedPaginator(PaginatorBase):
    """Counts up to ROWS_LISTED_MAX and lists as many: a list of ten million rows is its newest ten thousand."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return rows.order_by()[:ROWS_LISTED_MAX].count() if _filtered(rows) else rows[:ROWS_LISTED_MAX].count()
        return len(rows)


def _filtered(rows: QuerySet[Any]) -> bool:
    return bool(rows.query.where.children)


class BoundedChangeList(UnfoldChangeList):
    """A list that knows no total: what it counted, up to the limit, is all that it says."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        self.params.pop(ORDER_VAR, None)  # Django sorts by whatever an address asks for, also where no link offers it
        return super().get_ordering(request, queryset)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.full_result_count = self.result_count


class FactAdmin(Base):
    """Rows that the services write: shown to whoever may view them, and never added, changed or deleted here."""

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_per_page = ROWS_PER_PAGE
    list_max_show_all = 0
    sortable_by = ()  # another order would sort the whole table
    list_disable_select_all = True
    list_fullwidth = True
    list_filter_sheet = False
    actions_on_top = True
    exact_ids: Sequence[str] = ()  # UUID columns that each have an index
    exact_texts: Sequence[str] = ()  # text columns that each have an index, or stand in a small table

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        return [*self.exact_ids, *self.exact_texts]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Exact matches only: anything else would read the whole table."""
        term = search_term.strip().replace("\x00", "")
        if not term:
            return queryset, False
        wanted = _uuid(term)
        match = Q(pk__in=[])
        for column in self.exact_ids if wanted else ():
            match |= Q(**{column: wanted})
        for column in self.exact_texts:
            match |= Q(**{column: term})
        return queryset.filter(match), False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[Any]:
        return BoundedChangeList

    def may_look(self, request: HttpRequest, obj: Any = None) -> None:
        """Refuse whoever may not view this model."""
        if not self.has_view_permission(request, obj):
            raise PermissionDenied


class ChoiceFilter(admin.SimpleListFilter):
    """A filter on one column. Values without an index are looked for among the latest WINDOW_ROWS rows only."""

    column = ""
    choices_offered: Sequence[tuple[str, str]] = ()
    indexed: frozenset[str] = frozenset()
    newest_first: Sequence[str] = ("-pk",)
    edge_column = "pk"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        latest = f" (latest {WINDOW_ROWS // 1000} thousand)"
        return [(value, name if value in self.indexed else name + latest) for value, name in self.choices_offered]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None or value not in dict(self.choices_offered):
            return queryset
        wanted = queryset.filter(**{self.column: value})
        return wanted if value in self.indexed else self._latest(wanted)

    def _latest(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        newest = rows.model._default_manager.order_by(*self.newest_first)
        edge = newest.values_list(self.edge_column, flat=True)[WINDOW_ROWS : WINDOW_ROWS + 1]
        found = list(edge)
        return rows.filter(**{f"{self.edge_column}__gte": found[0]}) if found else rows


def badge(state: str, text: str = "") -> SafeString:
    """A state as a coloured label, which says it in words as well."""
    return format_html('<span class="k-badge k-{}">{}</span>', tone(state), text or state.replace("_", " "))


def moment(at: Any) -> SafeString:
    """A time with its age."""
    if at is None:
        return format_html('<span class="k-dim">{}</span>', "–")
    return format_html('<span class="k-nowrap" title="{} UTC">{} ago</span>', stamp(at), since(at))


def cell(text: object) -> SafeString:
    """A text from anywhere in a table's cell."""
    return format_html('<span class="k-cell">{}</span>', shown(text, CELL_CHARS_MAX))


def wide_cell(text: object) -> SafeString:
    """A sentence from anywhere in a table's cell."""
    return format_html('<span class="k-wide">{}</span>', shown(text, SENTENCE_CHARS_MAX)) if text else shown("")


def short_id(known: UUID, where: str = "") -> SafeString:
    """The end of an id, which tells neighbours apart; the whole id in its title, and a link if there is where to go."""
    end = f"…{str(known)[-12:]}"
    if not where:
        return format_html('<span class="k-mono k-nowrap" title="{}">{}</span>', known, end)
    return format_html('<a class="k-mono k-nowrap k-link" title="{}" href="{}">{}</a>', known, where, end)


def demand(request: HttpRequest, permission: str, obj: Model | None, wish: str) -> None:
    """Let only those pass who have the permission; a refused try is written down with who, what and from where."""
    assert isinstance(request.user, User)
    if not request.user.has_perm(permission):
        audit(request, obj, f"refused: {wish} needs {permission}")
        raise PermissionDenied


def audit(request: HttpRequest, obj: Model | None, what: str) -> None:
    """One line in the audit list. What an action does to the kernel is told by its event, too."""
    assert isinstance(request.user, User)
    LogEntry.objects.create(
        user=request.user,
        content_type=ContentType.objects.get_for_model(type(obj)) if obj else None,
        object_id=str(obj.pk) if obj else None,
        object_repr=str(obj)[:200] if obj else "",
        action_flag=CHANGE,
        change_message=f"{what} (from {request.META.get('REMOTE_ADDR') or 'an unknown address'})",
    )


def report(request: HttpRequest, obj: Model, act: Callable[[], str]) -> bool:
    """Do one thing to one object through its service, tell the person what came of it, and write it down."""
    try:
        told = act()
    except KernelError as error:
        messages.error(request, shown(f"{obj}: {error.message}"))
        audit(request, obj, f"not done: {error.message}")
        return False
    messages.success(request, shown(told))
    audit(request, obj, told)
    return True


def few_enough(request: HttpRequest, rows: QuerySet[Any]) -> list[Any]:
    """The chosen objects, or none at all and a message when there are too many."""
    chosen = list(rows.order_by()[: ACTION_OBJECTS_MAX + 1])
    if len(chosen) > ACTION_OBJECTS_MAX:
        messages.error(request, f"choose at most {ACTION_OBJECTS_MAX} at a time; nothing was done")
        return []
    return chosen


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, Base):  # type: ignore[type-arg]
    """People. They are switched off, not deleted: their names stand under decisions."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    show_full_result_count = False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, Base):
    """Roles, and the groups that policies ask to decide."""


@admin.register(LogEntry)
class AuditAdmin(FactAdmin):
    """Who did what from where, through these pages; what was refused stands here, too."""

    list_display = ["when", "who", "thing", "what"]
    list_display_links = None
    list_select_related = ["user", "content_type"]
    ordering = ["-pk"]
    exact_texts = ["user__username"]
    search_help_text = "A whole user name"

    @admin.display(description="When")
    def when(self, entry: LogEntry) -> SafeString:
        return moment(entry.action_time)

    @admin.display(description="Who")
    def who(self, entry: LogEntry) -> SafeString:
        return cell(entry.user.get_username())

    @admin.display(description="Thing")
    def thing(self, entry: LogEntry) -> SafeString:
        kind = entry.content_type.name if entry.content_type else ""
        return format_html('<span class="k-dim">{}</span> {}', kind, cell(entry.object_repr))

    @admin.display(description="What")
    def what(self, entry: LogEntry) -> SafeString:
        return wide_cell(entry.get_change_message())

    def change_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        self.may_look(request)
        return super().change_view(request, *args, **kwargs)
