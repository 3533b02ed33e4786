"""Legal holds: kept by the database itself, on each table, in the transaction that deletes."""

from importlib import import_module

import django.db.models.functions.datetime
from django.contrib.auth.management import create_permissions
from django.contrib.contenttypes.management import create_contenttypes
from django.db import migrations, models

import kernel_project.primitives.ids

BEFORE = import_module("outbox.migrations.0006_journal_is_not_emptied").FUNCTION

# The race is between whoever deletes and whoever places. Both lock the row of the project: the deleter shared, so that
# deleters do not wait for each other; placing writes it, so that it waits for deleters that are at work, and those that
# come later see the hold: also under REPEATABLE READ, where a row written since the snapshot is an error. Starting runs
# wait for neither.
GUARDS = """
CREATE FUNCTION runs_hold_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.released_at IS NOT NULL THEN
            RAISE EXCEPTION 'a hold is placed before it is released' USING ERRCODE = 'check_violation';
        END IF;
        UPDATE runs_project SET name = name WHERE slug = NEW.project;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no project %', NEW.project USING ERRCODE = 'foreign_key_violation';
        END IF;
        IF NEW.run_id IS NOT NULL
           AND NOT EXISTS (SELECT FROM runs_run WHERE id = NEW.run_id AND project_id = NEW.project)
           OR NEW.operation_id IS NOT NULL
           AND NOT EXISTS (SELECT FROM runs_operation WHERE id = NEW.operation_id AND run_id = NEW.run_id)
           OR NEW.digest <> '' AND NOT EXISTS (
               SELECT FROM runs_artifact a JOIN runs_run r ON r.id = a.run_id
               WHERE a.digest = NEW.digest AND r.project_id = NEW.project) THEN
            RAISE EXCEPTION 'there is nothing to hold' USING ERRCODE = 'foreign_key_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' AND OLD.released_at IS NULL AND NEW.released_at IS NOT NULL
       AND to_jsonb(OLD) - '{released_at,released_by,release_reason}'::text[]
           = to_jsonb(NEW) - '{released_at,released_by,release_reason}'::text[] THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'holds are on record for ever: one is placed once and released once'
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER runs_hold_is_kept BEFORE INSERT OR UPDATE OR DELETE ON runs_hold
    FOR EACH ROW EXECUTE FUNCTION runs_hold_is_kept();
CREATE TRIGGER runs_hold_is_not_emptied BEFORE TRUNCATE ON runs_hold
    FOR EACH STATEMENT EXECUTE FUNCTION runs_hold_is_kept();

-- The argument says how a row's project and run are found; runs/keeping/rules.py names it for each table.
CREATE FUNCTION runs_keep_what_is_held() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    in_project text;
    of_run uuid;
    content text := '';
    held uuid;
BEGIN
    CASE TG_ARGV[0]
        WHEN 'project' THEN in_project := OLD.slug;
        WHEN 'project_id' THEN in_project := OLD.project_id;
        WHEN 'project_name' THEN in_project := OLD.project;
        WHEN 'agent' THEN SELECT project_id INTO in_project FROM runs_agent WHERE id = OLD.agent_id;
        WHEN 'run' THEN
            -- a start that the engine never took is no run: it was refused, and nobody was told of it
            IF OLD.state = 'starting' THEN RETURN OLD; END IF;
            in_project := OLD.project_id; of_run := OLD.id;
        WHEN 'of_run' THEN in_project := OLD.project_id; of_run := OLD.run_id;
        WHEN 'of_run_alone' THEN of_run := OLD.run_id;
        WHEN 'named' THEN in_project := OLD.project; of_run := OLD.run_id;
        WHEN 'artifact' THEN
            of_run := OLD.run_id; content := OLD.digest;
            SELECT project_id INTO in_project FROM runs_run WHERE id = OLD.run_id AND state <> 'starting';
            IF NOT FOUND THEN RETURN OLD; END IF;
        WHEN 'stream' THEN
            of_run := OLD.run_id;
            SELECT project INTO in_project FROM outbox_stream WHERE run_id = OLD.run_id;
        WHEN 'approval' THEN
            SELECT project, run_id INTO in_project, of_run FROM approvals_approval WHERE id = OLD.approval_id;
    END CASE;
    IF in_project IS NULL THEN
        SELECT project_id INTO in_project FROM runs_run WHERE id = of_run;
    END IF;
    PERFORM FROM runs_project WHERE slug = in_project FOR SHARE;
    SELECT id INTO held FROM runs_hold
    WHERE project = in_project AND released_at IS NULL
      AND (scope = 'project' OR TG_ARGV[0] = 'project' OR run_id = of_run OR digest <> '' AND digest = content)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% % is on legal hold %', TG_TABLE_NAME, coalesce(of_run::text, in_project), held
            USING ERRCODE = 'restrict_violation', HINT = 'A hold is released with manage.py hold release.';
    END IF;
    RETURN OLD;
END $$;

CREATE FUNCTION runs_not_emptied_while_held() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE runs_hold IN SHARE MODE;
    IF EXISTS (SELECT FROM runs_hold WHERE released_at IS NULL) THEN
        RAISE EXCEPTION '% cannot be emptied: there are legal holds', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
"""
# As the journal's own migration made it. A month of the journal does not inherit triggers of statements, but it has this.
JOURNAL = """
CREATE OR REPLACE FUNCTION outbox_event_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        IF current_setting('kernel.purge', true) = 'on' THEN
            LOCK TABLE runs_hold IN SHARE MODE;
            IF EXISTS (SELECT FROM runs_hold WHERE released_at IS NULL) THEN
                RAISE EXCEPTION '% cannot be emptied: there are legal holds', TG_TABLE_NAME
                    USING ERRCODE = 'restrict_violation';
            END IF;
            RETURN NULL;
        END IF;
        RAISE EXCEPTION 'the journal (%) is immutable', TG_TABLE_NAME;
    END IF;
    IF TG_OP = 'DELETE' AND current_setting('kernel.purge', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'event % of run % is immutable', OLD.event_id, OLD.run_id;
END $$;
"""
NO_GUARDS = """
DROP FUNCTION runs_not_emptied_while_held() CASCADE;
DROP FUNCTION runs_keep_what_is_held() CASCADE;
DROP TRIGGER runs_hold_is_not_emptied ON runs_hold;
DROP TRIGGER runs_hold_is_kept ON runs_hold;
DROP FUNCTION runs_hold_is_kept();
"""
COVERED = {
    "runs_project": "project", "runs_apikey": "project_id", "runs_agent": "project_id", "runs_agentversion": "agent",
    "runs_mcpserver": "project_id", "runs_tool": "project_id", "runs_run": "run", "runs_operation": "of_run",
    "runs_idempotencykey": "of_run", "runs_runmessage": "of_run_alone", "runs_artifact": "artifact",
    "approvals_policy": "project_name", "approvals_channel": "project_name", "approvals_approval": "named",
    "approvals_decision": "approval", "approvals_delivery": "approval",
    "outbox_stream": "named", "outbox_event": "stream", "outbox_parkedevent": "stream",
}
COVER = "".join(
    f"""
    CREATE TRIGGER kernel_hold BEFORE DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION runs_keep_what_is_held('{how}');
    CREATE TRIGGER kernel_hold_whole BEFORE TRUNCATE ON {table}
        FOR EACH STATEMENT EXECUTE FUNCTION runs_not_emptied_while_held();
    """
    for table, how in COVERED.items()
)


def extend_roles(apps, schema_editor):
    config = apps.get_app_config("runs")
    config.models_module = True  # otherwise nothing is made for the apps of a migration's state
    create_contenttypes(config, apps=apps, verbosity=0)
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    permissions = apps.get_model("auth", "Permission").objects.filter(content_type__app_label="runs")
    for role in apps.get_model("auth", "Group").objects.all():
        match role.name:
            case "admin":
                role.permissions.add(*permissions)
            case "auditor":
                role.permissions.add(*permissions.filter(codename__in=("view_hold", "place_hold")))
            case "viewer" | "operator" | "approver":
                role.permissions.add(*permissions.filter(codename="view_hold"))


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0014_look_at_each_run_in_turn"),
        ("approvals", "0003_quorum_escalation_edits_and_announcements"),
        ("outbox", "0006_journal_is_not_emptied"),
    ]
    operations = [
        migrations.CreateModel(
            name='Hold',
            fields=[
                ('id', models.UUIDField(default=kernel_project.primitives.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ('project', models.CharField(help_text='Project slug.', max_length=100)),
                ('scope', models.CharField(choices=[('project', 'Project'), ('run', 'Run'), ('operation', 'Operation'), ('artifact', 'Artifact')], max_length=10)),
                ('run_id', models.UUIDField(help_text='The run that stays; for an operation, its run.', null=True)),
                ('operation_id', models.UUIDField(null=True)),
                ('digest', models.CharField(blank=True, default='', help_text='Of an artifact.', max_length=64)),
                ('reason', models.TextField()),
                ('placed_by', models.CharField(max_length=200)),
                ('placed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('released_by', models.CharField(blank=True, default='', max_length=200)),
                ('released_at', models.DateTimeField(null=True)),
                ('release_reason', models.TextField(blank=True, default='')),
            ],
            options={
                'permissions': [('place_hold', 'Can place and release legal holds')],
                'indexes': [models.Index(condition=models.Q(('released_at__isnull', True)), fields=['project'], name='hold_in_force'), models.Index(fields=['project', '-id'], name='hold_list')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('digest', ''), ('operation_id__isnull', True), ('run_id__isnull', True), ('scope', 'project')), models.Q(('digest', ''), ('operation_id__isnull', True), ('run_id__isnull', False), ('scope', 'run')), models.Q(('digest', ''), ('operation_id__isnull', False), ('run_id__isnull', False), ('scope', 'operation')), models.Q(('operation_id__isnull', True), ('run_id__isnull', True), ('scope', 'artifact'), models.Q(('digest', ''), _negated=True)), _connector='OR'), name='hold_names_its_target'), models.CheckConstraint(condition=models.Q(models.Q(('reason', ''), _negated=True), models.Q(('placed_by', ''), _negated=True)), name='hold_has_a_reason_and_an_author'), models.CheckConstraint(condition=models.Q(models.Q(('release_reason', ''), ('released_at__isnull', True), ('released_by', '')), models.Q(('released_at__isnull', False), models.Q(('released_by', ''), _negated=True), models.Q(('release_reason', ''), _negated=True)), _connector='OR'), name='hold_release_has_a_reason_and_an_author')],
            },
        ),
        migrations.RunSQL(GUARDS, NO_GUARDS),
        migrations.RunSQL(COVER, migrations.RunSQL.noop),
        migrations.RunSQL(JOURNAL, BEFORE),
        migrations.RunPython(extend_roles, migrations.RunPython.noop),
    ]
