"""Who made and took back each API key, in the row and in the audit record, whatever the way."""

from django.db import migrations, models

GUARDS = """
-- Keys have no events: made or taken back by a command, in the console or by hand, they are on record all the same.
CREATE FUNCTION runs_audit_key() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    of runs_apikey := coalesce(NEW, OLD);
    taken_back boolean := TG_OP = 'UPDATE' AND OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL;
    who text := CASE WHEN TG_OP = 'INSERT' THEN NEW.created_by WHEN taken_back THEN NEW.revoked_by END;
    what text := jsonb_build_object(
        'user', coalesce(nullif(who, ''), 'database role ' || session_user),
        'project', of.project_id, 'prefix', of.prefix, 'name', of.name, 'scopes', to_jsonb(of.scopes),
        'acts_as', (SELECT username FROM auth_user WHERE id = of.user_id),
        'expires_at', of.expires_at, 'revoked_at', of.revoked_at)::text;
BEGIN
    INSERT INTO runs_auditentry (action, content_hash, detail)
    VALUES ('key.' || CASE WHEN TG_OP = 'INSERT' THEN 'created' WHEN TG_OP = 'DELETE' THEN 'deleted'
                           WHEN taken_back THEN 'revoked' ELSE 'changed' END,
            encode(sha256(convert_to(what, 'UTF8')), 'hex'), what);
    RETURN NULL;
END $$;
CREATE TRIGGER kernel_audit AFTER INSERT OR DELETE OR UPDATE OF
    prefix, secret_hash, project_id, user_id, name, scopes, expires_at, revoked_at
    ON runs_apikey FOR EACH ROW EXECUTE FUNCTION runs_audit_key();
"""
NO_GUARDS = "DROP TRIGGER kernel_audit ON runs_apikey; DROP FUNCTION runs_audit_key();"


class Migration(migrations.Migration):
    dependencies = [("runs", "0022_messages_of_runs_are_held")]
    operations = [
        migrations.AddField(
            model_name='apikey',
            name='created_by',
            field=models.CharField(blank=True, db_default='', default='', max_length=200),
        ),
        migrations.AddField(
            model_name='apikey',
            name='revoked_by',
            field=models.CharField(blank=True, db_default='', default='', max_length=200),
        ),
        migrations.AlterField(
            model_name='auditentry',
            name='action',
            field=models.CharField(help_text="The event's type, console, or what became of a key.", max_length=100),
        ),
        migrations.RunSQL(GUARDS, NO_GUARDS),
    ]
