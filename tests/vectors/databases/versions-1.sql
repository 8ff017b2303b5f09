BEGIN TRANSACTION;
CREATE TABLE meta (
	"key" VARCHAR(32) NOT NULL, 
	value TEXT, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('schema','1');
CREATE TABLE retired (
	model TEXT NOT NULL, 
	at_ms INTEGER, 
	PRIMARY KEY (model)
)
 WITHOUT ROWID

;
INSERT INTO "retired" VALUES('digits@5',1790000000000);
CREATE TABLE spoken (
	device TEXT NOT NULL, 
	name TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	cut TEXT NOT NULL, 
	codec TEXT NOT NULL, 
	at_ms INTEGER, 
	PRIMARY KEY (device, name, version, cut, codec)
)
 WITHOUT ROWID

;
INSERT INTO "spoken" VALUES('demo--cam-1','digits',7,'block2','pack4',1790000000000);
COMMIT;
pragma user_version=0;
