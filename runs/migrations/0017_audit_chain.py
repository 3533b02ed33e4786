"""Who did and decided what, in a chain of hashes per project."""

import django.db.models.functions.datetime
from django.db import migrations, models

GUARDS = """
CREATE FUNCTION runs_audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.sequence IS NULL AND NEW.sequence IS NOT NULL AND NEW.hash <> ''
       AND to_jsonb(OLD) - '{project,actor,sequence,previous_hash,hash}'::text[]
           = to_jsonb(NEW) - '{project,actor,sequence,previous_hash,hash}'::text[] THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit record cannot be changed' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER runs_audit_is_kept BEFORE UPDATE OR DELETE ON runs_auditentry
    FOR EACH ROW EXECUTE FUNCTION runs_audit_is_kept();
CREATE TRIGGER runs_audit_is_not_emptied BEFORE TRUNCATE ON runs_auditentry
    FOR EACH STATEMENT EXECUTE FUNCTION runs_audit_is_kept();

-- In the transaction of the action itself, and as little as possible: sealing finds out the rest.
CREATE FUNCTION runs_audit_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO runs_auditentry (action, event_id, run_id, content_hash)
    VALUES (NEW.type, NEW.event_id, NEW.run_id, encode(sha256(convert_to(NEW.envelope, 'UTF8')), 'hex'));
    RETURN NULL;
END $$;
CREATE TRIGGER kernel_audit AFTER INSERT ON outbox_event FOR EACH ROW
    WHEN (NEW.type LIKE 'run.%' OR NEW.type LIKE 'tool.%' OR NEW.type LIKE 'approval.%' OR NEW.type LIKE 'hold.%'
          OR NEW.type LIKE 'retention.%' OR NEW.type IN ('operation.reconciled', 'operation.late_result', 'event.given_up'))
    EXECUTE FUNCTION runs_audit_event();

CREATE FUNCTION runs_audit_console() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    who text := coalesce((SELECT username FROM auth_user WHERE id = NEW.user_id), '');
    what text := jsonb_build_object('user', who, 'object', NEW.object_repr, 'id', NEW.object_id,
                                    'flag', NEW.action_flag, 'message', NEW.change_message)::text;
BEGIN
    INSERT INTO runs_auditentry (action, content_hash, detail)
    VALUES ('console', encode(sha256(convert_to(what, 'UTF8')), 'hex'), what);
    RETURN NULL;
END $$;
CREATE TRIGGER kernel_audit AFTER INSERT ON django_admin_log FOR EACH ROW EXECUTE FUNCTION runs_audit_console();
"""
NO_GUARDS = """
DROP TRIGGER kernel_audit ON django_admin_log; DROP FUNCTION runs_audit_console();
DROP TRIGGER kernel_audit ON outbox_event; DROP FUNCTION runs_audit_event();
DROP FUNCTION runs_audit_is_kept() CASCADE;
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0016_retention"), ("admin", "0003_logentry_add_action_flag_choices")]
    operations = [
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('action', models.CharField(help_text="The event's type, or console.", max_length=100)),
                ('event_id', models.UUIDField(null=True)),
                ('run_id', models.UUIDField(help_text='The stream of the event.', null=True)),
                ('content_hash', models.CharField(help_text='SHA-256 of the event as it was told, or of the detail.', max_length=64)),
                ('detail', models.TextField(blank=True, db_default='', default='')),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('project', models.CharField(max_length=100, null=True)),
                ('actor', models.CharField(blank=True, db_default='', default='', max_length=200)),
                ('sequence', models.BigIntegerField(help_text='Empty: not yet sealed.', null=True)),
                ('previous_hash', models.CharField(blank=True, db_default='', default='', max_length=64)),
                ('hash', models.CharField(blank=True, db_default='', default='', max_length=64)),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'indexes': [models.Index(condition=models.Q(('sequence__isnull', True)), fields=['id'], name='audit_unsealed'), models.Index(fields=['run_id'], name='audit_of_run')],
                'constraints': [models.UniqueConstraint(fields=('project', 'sequence'), name='audit_chain'), models.CheckConstraint(condition=models.Q(models.Q(('hash', ''), ('sequence__isnull', True)), models.Q(('project__isnull', False), ('sequence__isnull', False)), _connector='OR'), name='audit_entry_is_sealed_whole')],
            },
        ),
        migrations.RunSQL(GUARDS, NO_GUARDS),
    ]
